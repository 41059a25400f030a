"""Public names of `widthwise.exact`."""

from widthwise.flow.exact import ExactLaw as ExactLaw
from widthwise.flow.exact import KernelLaw as KernelLaw
from widthwise.flow.exact import kurtosis_by_depth as kurtosis_by_depth
from widthwise.flow.exact import scale_free_moments as scale_free_moments
from widthwise.flow.exact.deep_linear import DeepLinear as DeepLinear
from widthwise.flow.exact.deep_linear import deep_linear as deep_linear
from widthwise.flow.exact.kernel_step import KernelStep as KernelStep
from widthwise.flow.exact.kernel_step import kernel_step as kernel_step
from widthwise.special.bayesian_interpolation import Interpolation as Interpolation
from widthwise.special.bayesian_interpolation import bayesian_interpolation as bayesian_interpolation
from widthwise.special.bayesian_interpolation import interpolation_scale_limit as interpolation_scale_limit
from widthwise.special.linear_products import ProductLaw as ProductLaw
from widthwise.special.linear_products import product_law as product_law
from widthwise.special.random_spectra import MarchenkoPastur as MarchenkoPastur
from widthwise.special.random_spectra import ProductSpectrum as ProductSpectrum
from widthwise.special.random_spectra import marchenko_pastur as marchenko_pastur
from widthwise.special.random_spectra import product_spectrum as product_spectrum
