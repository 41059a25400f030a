"""One input through any depth: ratios that neither overflow nor underflow."""
