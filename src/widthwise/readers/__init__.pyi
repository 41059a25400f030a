"""Public names of `widthwise.readers`, beside those at the top."""

from widthwise.readers.empirical.model_kernels import model_differentials as model_differentials
from widthwise.readers.empirical.model_kernels import model_dntk as model_dntk
from widthwise.readers.empirical.model_kernels import ntk_operator as ntk_operator
from widthwise.readers.jax_models import from_equinox as from_equinox
from widthwise.readers.jax_models import from_flax as from_flax
from widthwise.readers.jax_models import init_equinox as init_equinox
from widthwise.readers.jax_models import init_flax as init_flax
from widthwise.readers.models import hessian_spectrum as hessian_spectrum
from widthwise.readers.models import model_kernels as model_kernels
from widthwise.readers.optax_rates import optax_transform as optax_transform
from widthwise.readers.stax import from_stax as from_stax
from widthwise.readers.stax import stax_kernels as stax_kernels
