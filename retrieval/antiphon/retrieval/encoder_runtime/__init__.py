"""How encoder models are loaded and run: device, precision, model hub, and torch or OpenVINO as the engine."""
