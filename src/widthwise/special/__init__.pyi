"""Public names of `widthwise.special`."""

from widthwise.special.learning_rate_limits import CatapultOrbit as CatapultOrbit
from widthwise.special.learning_rate_limits import EigenvalueBounds as EigenvalueBounds
from widthwise.special.learning_rate_limits import catapult_map as catapult_map
from widthwise.special.learning_rate_limits import catapult_orbit as catapult_orbit
from widthwise.special.learning_rate_limits import chernoff_bound as chernoff_bound
from widthwise.special.learning_rate_limits import largest_eigenvalue_bounds as largest_eigenvalue_bounds
from widthwise.special.linear_pieces import SegmentPieces as SegmentPieces
from widthwise.special.linear_pieces import expected_kinks as expected_kinks
from widthwise.special.linear_pieces import hyperplane_regions as hyperplane_regions
from widthwise.special.linear_pieces import linear_pieces_on_segment as linear_pieces_on_segment
from widthwise.special.linear_pieces import region_bound as region_bound
from widthwise.special.linear_pieces import sawtooth_network as sawtooth_network
from widthwise.special.polygon_pieces import PolygonPieces as PolygonPieces
from widthwise.special.polygon_pieces import linear_pieces_in_polygon as linear_pieces_in_polygon
from widthwise.special.relu_paths import NTKMoments as NTKMoments
from widthwise.special.relu_paths import PathMoments as PathMoments
from widthwise.special.relu_paths import expected_relu_ntk as expected_relu_ntk
from widthwise.special.relu_paths import relu_derivative_law as relu_derivative_law
from widthwise.special.relu_paths import relu_ntk_moments as relu_ntk_moments
from widthwise.special.relu_paths import relu_path_moments as relu_path_moments
