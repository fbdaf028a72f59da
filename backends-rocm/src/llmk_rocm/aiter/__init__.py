"""AMD's own kernels for its Instinct GPUs (ROCm/aiter), each called by keyword as its repository declares it.
``signatures`` and ``specs`` import no torch."""
