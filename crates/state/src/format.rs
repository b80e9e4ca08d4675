//! The bytes of a state file, in little-endian order:
//!
//! ```text
//! header    128 bytes  "TIDEGATE", version, whether it is clean, secret, clocks, shards, losses, start; CRC-32
//! blocks     24 bytes  length, algorithm, a checksum of this line, time of the copy, number of counters; CRC-32 of all
//!           and counters of one algorithm, about 64 KiB
//! trailer    24 bytes  the number of all counters, a checksum of all blocks' checksums; CRC-32
//! ```
//!
//! A block is as large as the last shard or one long counter requires; its length is checked before memory is
//! allocated for it. Nothing follows the trailer. CRC-32 finds accidents; the file has the mode 0600, and a user who
//! may change it may change all counts.

use std::ops::Range;

use crate::moment::Moment;
use crate::outcome::Distrust;
use tidegate_engine::key::SharedId;
use tidegate_engine::limit::Algorithm;
use tidegate_engine::time::Timestamp;

/// The version that this program writes, and the newest that it reads.
const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"TIDEGATE";

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 128;
/// Bytes in front of the counters of a block, and of the trailer.
pub(super) const FRAME_BYTES: usize = 24;
/// A block ends when its counters have this many bytes.
pub(super) const BLOCK_BYTES: usize = 64 << 10;

/// The algorithm's place in a frame that is a trailer.
const TRAILER: u8 = 0xff;
/// The bytes of the frame's own checksum: three bytes of a CRC-32.
const OWN_CHECKSUM: Range<usize> = 5..8;

/// The secret of keys.
pub(super) type SecretBytes = [u8; 16];
/// A hash of the secret, from which nobody can compute it.
pub(super) type Fingerprint = [u8; 16];

/// The contents of the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// It was written after the last decision.
    pub is_clean: bool,
    /// The secret of the keys, unless it is in a file of its own.
    pub(super) secret: Option<SecretBytes>,
    /// A hash of that secret.
    pub(super) fingerprint: Fingerprint,
    /// When and where it was written.
    pub moment: Moment,
    /// SHARD_MEMBERS of the process; 0: not set.
    pub members: u32,
    /// SHARD_NAME of the process.
    pub name: ShardName,
    /// When counters were last lost, by the clock of decisions: a clean end does not bring them back.
    pub lost_since: Option<Timestamp>,
    /// The number of the start that wrote this, counted over all starts with this folder; 0: an earlier version wrote
    /// it.
    pub sequence: u64,
}

/// A hash of SHARD_NAME; zeros: not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardName([u8; 16]);

impl ShardName {
    /// The hash of this name.
    pub fn of(name: Option<&str>) -> Self {
        let hash = |name: &str| SharedId::of([b"tidegate: name of a shard".as_slice(), name.as_bytes()]);
        name.map(|name| Self(hash(name).0)).unwrap_or_default()
    }
}

/// The line in front of the counters of a block, or the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Block {
        /// Bytes of counters that follow.
        bytes: u32,
        algorithm: Algorithm,
        copied_at: Timestamp,
        counters: u32,
    },
    Trailer {
        counters: u64,
        /// The CRC-32 of the checksums of all blocks, in order.
        chain: u32,
    },
}

impl Header {
    /// Whether the secret of the keys is in the file.
    pub fn holds_secret(&self) -> bool {
        self.secret.is_some()
    }

    pub(super) fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&u32::from(self.is_clean).to_le_bytes());
        bytes.extend_from_slice(&self.fingerprint);
        bytes.extend_from_slice(&self.secret.unwrap_or_default());
        bytes.extend_from_slice(&self.moment.boot_id);
        for nanos in [self.moment.boot_nanos, self.moment.clock.as_nanos(), self.moment.wall.as_nanos()] {
            bytes.extend_from_slice(&nanos.to_le_bytes());
        }
        bytes.extend_from_slice(&self.members.to_le_bytes());
        bytes.extend_from_slice(&self.lost_since.map_or(0, Timestamp::as_nanos).to_le_bytes());
        bytes.extend_from_slice(&self.name.0);
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        let mut header = [0; HEADER_BYTES];
        header[..bytes.len()].copy_from_slice(&bytes);
        let (checked, checksum) = header.split_at_mut(HEADER_BYTES - 4);
        checksum.copy_from_slice(&crc32fast::hash(checked).to_le_bytes());
        header
    }

    /// # Errors
    /// When this is not a header, or a header of a newer version.
    pub(super) fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Distrust> {
        let damaged = |what| Err(Distrust::Damaged { at: 0, what });
        if !bytes.starts_with(MAGIC) {
            return damaged("it is no state of Tidegate");
        }
        let version = u32::from_le_bytes(array(bytes, 8));
        if version > VERSION {
            return Err(Distrust::NewerVersion { version, known: VERSION });
        }
        if crc32fast::hash(&bytes[..HEADER_BYTES - 4]) != u32::from_le_bytes(array(bytes, HEADER_BYTES - 4)) {
            return damaged("the checksum of the header is wrong");
        }
        let is_clean = match (version, u32::from_le_bytes(array(bytes, 12))) {
            (VERSION, 0) => false,
            (VERSION, 1) => true,
            _ => return damaged("the header is invalid"),
        };
        let secret: SecretBytes = array(bytes, 32);
        let number = |at| u64::from_le_bytes(array(bytes, at));
        Ok(Self {
            is_clean,
            fingerprint: array(bytes, 16),
            secret: (secret != [0; 16]).then_some(secret),
            moment: Moment {
                boot_id: array(bytes, 48),
                boot_nanos: number(64),
                clock: Timestamp::from_nanos(number(72)),
                wall: Timestamp::from_nanos(number(80)),
            },
            members: u32::from_le_bytes(array(bytes, 88)),
            name: ShardName(array(bytes, 100)),
            lost_since: Some(number(92)).filter(|nanos| *nanos > 0).map(Timestamp::from_nanos),
            sequence: number(116),
        })
    }
}

impl Frame {
    /// The frame with its own checksum and that of `counters`, and the latter.
    pub(super) fn to_bytes(self, counters: &[u8]) -> ([u8; FRAME_BYTES], u32) {
        let (length, kind, large, small) = match self {
            Self::Block { bytes, algorithm, copied_at, counters } => {
                (bytes, algorithm.number(), copied_at.as_nanos(), counters)
            }
            Self::Trailer { counters, chain } => (0, TRAILER, counters, chain),
        };
        let mut frame = [0; FRAME_BYTES];
        frame[..4].copy_from_slice(&length.to_le_bytes());
        frame[4] = kind;
        frame[8..16].copy_from_slice(&large.to_le_bytes());
        frame[16..20].copy_from_slice(&small.to_le_bytes());
        let own = own_checksum(frame);
        frame[OWN_CHECKSUM].copy_from_slice(&own);
        let checksum = checksum(&frame, counters);
        frame[20..].copy_from_slice(&checksum.to_le_bytes());
        (frame, checksum)
    }

    /// The contents of a frame, without a check of what follows. `None`: it is no frame.
    pub(super) fn parse(bytes: &[u8; FRAME_BYTES]) -> Option<Self> {
        if bytes[OWN_CHECKSUM] != own_checksum(*bytes) {
            return None;
        }
        let length = u32::from_le_bytes(array(bytes, 0));
        let (large, small) = (u64::from_le_bytes(array(bytes, 8)), u32::from_le_bytes(array(bytes, 16)));
        if bytes[4] == TRAILER {
            return (length == 0).then_some(Self::Trailer { counters: large, chain: small });
        }
        let algorithm = *Algorithm::ALL.get(usize::from(bytes[4]))?;
        let copied_at = Timestamp::from_nanos(large);
        (length > 0).then_some(Self::Block { bytes: length, algorithm, copied_at, counters: small })
    }

    /// The checksum in the frame.
    pub(super) fn checksum_in(bytes: &[u8; FRAME_BYTES]) -> u32 {
        u32::from_le_bytes(array(bytes, 20))
    }
}

/// The checksum of a frame and its counters.
pub(super) fn checksum(frame: &[u8; FRAME_BYTES], counters: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&frame[..FRAME_BYTES - 4]);
    hasher.update(counters);
    hasher.finalize()
}

/// The checksum of a frame without its counters, and without both of its checksums.
fn own_checksum(mut frame: [u8; FRAME_BYTES]) -> [u8; 3] {
    frame[OWN_CHECKSUM].fill(0);
    array(&crc32fast::hash(&frame[..FRAME_BYTES - 4]).to_le_bytes(), 0)
}

fn array<const COUNT: usize>(bytes: &[u8], at: usize) -> [u8; COUNT] {
    *bytes[at..].first_chunk().expect("the places of fields are within their frame")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files contain these numbers: add a new algorithm at the end of the list, or change the version.
    #[test]
    fn an_algorithm_has_the_number_that_it_had() {
        let names = Algorithm::ALL.map(Algorithm::name);
        let known = ["sliding_log", "sliding_window", "sliding_window_weighted"];
        assert_eq!(names[..3], known);
        assert_eq!(names[3..7], ["fixed_window", "token_bucket", "leaky_bucket", "calendar"]);
        assert_eq!(names[7..], ["concurrency", "ban", "holds"]);
    }

    /// A changed length allocates no memory: it is noticed before anything is read.
    #[test]
    fn a_frame_with_any_bit_changed_is_none() {
        let frame = Frame::Block {
            bytes: 70_000,
            algorithm: Algorithm::SlidingLog,
            copied_at: Timestamp::from_secs(1_790_000_000),
            counters: 900,
        };
        let (bytes, _) = frame.to_bytes(b"counters");
        assert_eq!(Frame::parse(&bytes), Some(frame));
        for bit in 0..(FRAME_BYTES - 4) * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Frame::parse(&changed), None, "bit {bit}");
        }
    }

    #[test]
    fn a_block_without_bytes_is_no_frame() {
        let (algorithm, copied_at) = (Algorithm::SlidingLog, Timestamp::from_secs(1));
        let frame = |bytes| Frame::Block { bytes, algorithm, copied_at, counters: 0 }.to_bytes(b"").0;
        assert_eq!((Frame::parse(&frame(0)), Frame::parse(&frame(1)).is_some()), (None, true));
    }
}
