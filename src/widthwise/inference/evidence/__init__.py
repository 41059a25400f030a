"""The evidence of networks: one specification against another, before anything is trained."""
