-- leaky_bucket: the same machine, told as what is in it.
kinds[LEAKY_BUCKET] = gcra
