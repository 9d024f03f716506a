"""What drivers and the kernel say: NVML, amdgpu, sysfs, /proc, kernel messages, file systems."""
