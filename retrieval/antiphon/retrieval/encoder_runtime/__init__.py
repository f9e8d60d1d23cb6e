"""Load and run encoder models: device, precision, model hub, and torch or OpenVINO as the engine."""
