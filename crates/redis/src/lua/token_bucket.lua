-- token_bucket: told as what is taken out.
kinds[TOKEN_BUCKET] = gcra
