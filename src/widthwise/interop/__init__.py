"""Models made elsewhere: read them, write advice back into them, measure them; scikit-learn estimators."""
