"""From results to what a reader sees: statistics, figures and pages."""
