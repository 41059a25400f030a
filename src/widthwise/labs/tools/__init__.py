"""What several labs share: small solvers, fits, spectra, classifiers."""
