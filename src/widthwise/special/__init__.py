"""Networks solved exactly at finite size, and spectra of curvature by Lanczos iteration."""
