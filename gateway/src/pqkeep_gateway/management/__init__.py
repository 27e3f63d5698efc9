"""The management address: liveness, readiness and metrics for the operator's tools."""
