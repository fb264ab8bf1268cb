"""Automatic intermediate rewards: the signals that an app gives off, as rewards of the calls behind them."""
