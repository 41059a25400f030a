"""A web page that follows the theory live, samples and trains real networks beside it (`widthwise explore`)."""

from widthwise.extras import needing

with needing("explorer", "the explorer"):
    from widthwise.explorer.server import serve

__all__ = ["serve"]
