"""Many runs: what a run is, one resumable run, and the pools that make them."""
