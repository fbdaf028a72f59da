"""Tensors between host and device, recorded steps and traces, without waiting for the device."""
