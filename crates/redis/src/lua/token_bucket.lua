-- token_bucket: the level is what is taken out.
kinds[TOKEN_BUCKET] = gcra
