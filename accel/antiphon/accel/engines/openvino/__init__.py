"""The OpenVINO engine: runs the model as an OpenVINO graph with paged attention, on x86 CPUs."""
