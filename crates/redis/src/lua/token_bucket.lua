-- token_bucket: told as what is taken out.
kinds[4] = gcra
