-- leaky_bucket: the same algorithm, where the level is what is in the bucket.
kinds[LEAKY_BUCKET] = gcra
