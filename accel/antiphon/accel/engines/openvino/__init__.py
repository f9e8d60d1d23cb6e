"""The engine of OpenVINO: the same model as a graph with paged attention, on x86 CPUs."""
