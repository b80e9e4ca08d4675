//! Certificates, made as they are needed: authorities, and identities of servers and clients.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType, date_time_ymd,
};

/// Signs certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Identity {
    pub chain: String,
    pub key: String,
}

/// The same, in files.
pub struct IdentityFiles {
    pub chain: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = params(&[]);
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, key()).expect("sound parameters"))
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// For the host with this DNS name (or address).
    pub fn issue(&self, name: &str) -> Identity {
        self.sign(&params(&[name]))
    }

    /// The same, and not valid any more.
    pub fn issue_expired(&self, name: &str) -> Identity {
        let mut params = params(&[name]);
        params.not_after = date_time_ymd(2020, 1, 1);
        self.sign(&params)
    }

    /// For the client with this URI.
    pub fn issue_uri(&self, uri: &str) -> Identity {
        let mut params = params(&[]);
        params.subject_alt_names.push(SanType::URI(uri.try_into().expect("ASCII")));
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Identity {
        let key = key();
        let certificate = params.signed_by(&key, &self.0).expect("sound parameters");
        Identity { chain: certificate.pem(), key: key.serialize_pem() }
    }
}

impl Identity {
    /// Writes both into this folder.
    pub fn write(&self, folder: &Path) -> IdentityFiles {
        fs::create_dir_all(folder).expect("the folder is ours");
        IdentityFiles {
            chain: write(folder, "tls.crt", &self.chain),
            key: write(folder, "tls.key", &self.key),
        }
    }
}

/// Writes a file. Where it is.
pub fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).expect("the folder is ours");
    path
}

fn key() -> KeyPair {
    KeyPair::generate().expect("the system has randomness")
}

fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
    CertificateParams::new(names).expect("names of DNS, or addresses")
}
