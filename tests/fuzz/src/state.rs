//! Counters as a file of state has them: they are taken or refused, and those that are taken are written and taken again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_engine::limit::Algorithm;
use tidegate_engine::memory::{Encoded, ExportPlace, MemoryOptions, MemoryStore};
use tidegate_engine::time::Timestamp;

const NOW: Timestamp = Timestamp::from_secs(1_790_000_000);

/// The counters of a store, in their order.
fn counters(store: &MemoryStore) -> Vec<(Algorithm, u32, Vec<u8>)> {
    let (mut place, mut all) = (ExportPlace::default(), Vec::new());
    loop {
        let mut bytes = Vec::new();
        match store.export(&mut place, NOW, &mut bytes) {
            Some(exported) => all.push((exported.algorithm, exported.counters, bytes)),
            None => return all,
        }
    }
}

/// The same in any order: that of a table depends on the order in which its counters came.
fn sorted(mut all: Vec<(Algorithm, u32, Vec<u8>)>) -> Vec<(Algorithm, u32, Vec<u8>)> {
    all.iter_mut().for_each(|(.., bytes)| bytes.sort_unstable());
    all
}

/// A store that takes these. `None`: it refuses one.
fn taken(all: &[(Algorithm, u32, Vec<u8>)]) -> Option<MemoryStore> {
    let store = MemoryStore::new(MemoryOptions::new(16 << 20));
    let all = all.iter().map(|(algorithm, counters, bytes)| Encoded {
        algorithm: *algorithm,
        counters: *counters,
        bytes,
        copied_at: NOW,
    });
    all.into_iter().try_for_each(|encoded| store.import(&encoded).ok())?;
    Some(store)
}

fuzz_target!(|data: (u8, u8, &[u8])| {
    let (algorithm, counters_in, bytes) = data;
    let algorithm = Algorithm::ALL[usize::from(algorithm) % Algorithm::ALL.len()];
    if let Some(store) = taken(&[(algorithm, u32::from(counters_in), bytes.to_vec())]) {
        let written = counters(&store);
        let again = taken(&written).expect("what was written is taken");
        assert_eq!(sorted(counters(&again)), sorted(written));
    }
});
