"""Public names of `widthwise.criticality`, beside those at the top."""

from widthwise.criticality.asymptotic_laws import asymptotics as asymptotics
from widthwise.criticality.depth_laws import depth_growth as depth_growth
from widthwise.criticality.depth_width import mutual_information as mutual_information
from widthwise.criticality.depth_width import optimal_aspect_ratio as optimal_aspect_ratio
from widthwise.criticality.kernel_fixed_points import PairFixedPoint as PairFixedPoint
from widthwise.criticality.kernel_fixed_points import correlation_length as correlation_length
from widthwise.criticality.kernel_fixed_points import fixed_points as fixed_points
from widthwise.criticality.kernel_fixed_points import kernel_map as kernel_map
from widthwise.criticality.kernel_fixed_points import pair_fixed_point as pair_fixed_point
from widthwise.criticality.kernel_fixed_points import susceptibilities as susceptibilities
from widthwise.criticality.learning_rates import equalise as equalise
from widthwise.criticality.learning_rates import layer_shares as layer_shares
from widthwise.criticality.learning_rates import power_law_rates as power_law_rates
from widthwise.criticality.phase_diagram import critical_line as critical_line
from widthwise.criticality.tuning import make_critical as make_critical
from widthwise.criticality.tuning import shaped as shaped
