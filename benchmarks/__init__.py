"""Speed, as ratios of medians in one run, contenders in turn. Nothing here is a test: machines are shared and noisy."""
