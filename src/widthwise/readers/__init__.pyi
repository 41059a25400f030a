"""Public names of `widthwise.readers`, beside those at the top."""

from widthwise.readers.empirical import model_dntk as model_dntk
from widthwise.readers.empirical import model_kernels as model_kernels
from widthwise.readers.equinox_models import from_equinox as from_equinox
from widthwise.readers.equinox_models import init_equinox as init_equinox
from widthwise.readers.flax_models import from_flax as from_flax
from widthwise.readers.flax_models import init_flax as init_flax
from widthwise.readers.hessian import hessian_spectrum as hessian_spectrum
from widthwise.readers.optax_rates import optax_transform as optax_transform
from widthwise.readers.stax import from_stax as from_stax
from widthwise.readers.stax import stax_kernels as stax_kernels
