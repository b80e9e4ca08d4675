//! Envoy's RING_HASH: which node a key belongs to.
//!
//! In: names and weights of nodes, and the smallest size of the ring. Out: the node of a key. Each node has points on a
//! circle of 64 bits, at the xxHash64 of `name_0`, `name_1` and so on; a key belongs to the node of the first point at its
//! own hash or after it. The black-box tests hold this to the choices of a real Envoy.

use twox_hash::XxHash64;

/// Envoy's largest ring, unless it is configured.
const POINTS_MAX: f64 = (8 << 20) as f64;

/// A ring, and the places of its nodes.
#[derive(Clone, Debug)]
pub struct Ring {
    /// Each point with its node, ascending.
    points: Vec<(u64, u32)>,
}

impl Ring {
    /// A ring of nodes that weigh the same, with so many points for each: `minimum_ring_size` is `points` × nodes.
    pub fn of<S: AsRef<str>>(names: &[S], points: u64) -> Self {
        let weighted: Vec<_> = names.iter().map(|name| (name.as_ref(), 1)).collect();
        Self::weighted(&weighted, points * names.len() as u64)
    }

    /// A ring of nodes with weights, none of them 0, under a `minimum_ring_size`.
    pub fn weighted(nodes: &[(&str, u32)], minimum: u64) -> Self {
        let sum: f64 = nodes.iter().map(|(_, weight)| f64::from(*weight)).sum();
        let normal = |weight: u32| f64::from(weight) / sum;
        let least = nodes.iter().map(|(_, weight)| normal(*weight)).fold(f64::INFINITY, f64::min);
        // The lightest node gets a whole number of points.
        let scale = ((least * minimum as f64).ceil() / least).min(POINTS_MAX);
        let mut points = Vec::with_capacity(scale.ceil() as usize);
        let mut wanted = 0.0;
        for (node, (name, weight)) in nodes.iter().enumerate() {
            wanted += scale * normal(*weight);
            let of_node = (0..).map(|number| (hash(&format!("{name}_{number}")), node as u32));
            let missing = (wanted - points.len() as f64).max(0.0).ceil() as usize;
            points.extend(of_node.take(missing));
        }
        points.sort_unstable();
        Self { points }
    }

    /// The place of the node, among those of [`of`](Self::of), that this key belongs to.
    pub fn node_of(&self, key: &str) -> usize {
        self.node_at(hash(key))
    }

    /// The same for the hash of a key.
    pub fn node_at(&self, hash: u64) -> usize {
        let next = self.points.partition_point(|(point, _)| *point < hash);
        let (_, node) = self.points[if next == self.points.len() { 0 } else { next }];
        node as usize
    }

    /// How many points each of so many nodes has.
    pub fn points_of_each(&self, nodes: usize) -> Vec<usize> {
        let mut each = vec![0; nodes];
        self.points.iter().for_each(|(_, node)| each[*node as usize] += 1);
        each
    }
}

/// Envoy's hash of a text.
pub fn hash(text: &str) -> u64 {
    XxHash64::oneshot(0, text.as_bytes())
}
