//! The signature of a request: HMAC-SHA256 of its time and its body, under a secret that the receiver has too.
//!
//! The time is signed, so a receiver can refuse old requests: somebody may have kept them. Each attempt has a
//! signature of its own.

use ring::hmac;

use tidegate_serve::events::hex;

pub(super) struct Signer(hmac::Key);

impl Signer {
    /// Signs under this secret.
    pub(super) fn new(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// The header of a request that is sent at this Unix time: `t=1795372199,v1=…`.
    pub(super) fn header(&self, seconds: u64, body: &[u8]) -> String {
        let mut signed = hmac::Context::with_key(&self.0);
        signed.update(format!("{seconds}.").as_bytes());
        signed.update(body);
        format!("t={seconds},v1={}", hex(signed.sign().as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// printf '1795372199.{"events":[]}' | openssl dgst -sha256 -hmac hunter2
    #[test]
    fn openssl_signs_the_same() {
        let header = Signer::new(b"hunter2").header(1_795_372_199, b"{\"events\":[]}");
        assert_eq!(
            header,
            "t=1795372199,v1=bef42d33b10d8690c07c65af04ebda2456f8310acf38cd7cf2d53e2584283d34"
        );
    }
}
