"""The skewness that few values are drawn with, by scipy."""

import numpy as np
import scipy.stats


def shrunken_skewness(values):
    """Take scipy's skewness for what few values show of it."""
    shown, root = scipy.stats.skew(values, bias=False), np.sqrt(len(values))
    return np.sign(shown) * root * np.maximum(np.abs(shown) / root, np.minimum(1, 9 * shown**2 / root**2))
