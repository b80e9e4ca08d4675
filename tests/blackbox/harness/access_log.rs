//! A recorded access log, and how often each of its clients has to be denied.

use std::collections::HashMap;

/// `tests/data/README.md` says where it comes from.
const LOG: &str = include_str!("../../data/access.log");

/// A line of the log.
#[derive(Clone, Copy)]
pub struct Line<'a> {
    pub client: &'a str,
    pub method: &'a str,
    pub path: &'a str,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Self {
        let (client, _) = line.split_once(' ').expect("starts with the client");
        let mut request = line.split('"').nth(1).expect("quotes the request").split(' ');
        let mut word = || request.next().expect("method, path and protocol");
        Self { client, method: word(), path: word() }
    }
}

/// All lines, in their order.
pub fn lines() -> Vec<Line<'static>> {
    let lines: Vec<_> = LOG.lines().map(Line::parse).collect();
    assert_eq!(lines.len(), 3000);
    lines
}

/// How many requests of each client are denied when a client may send so many, and so many of each `part` (of the path).
/// Independent of the program: with a window longer than the run, a limit is a count of what was admitted.
pub fn oracle<'a>(
    lines: &[Line<'a>],
    per_client: u32,
    per_client_and_part: u32,
    part: fn(&Line<'a>) -> &'a str,
) -> HashMap<&'a str, u32> {
    let mut admitted = HashMap::<(&str, &str), u32>::new();
    let mut denied = HashMap::<&str, u32>::new();
    for line in lines {
        let both = [((line.client, ""), per_client), ((line.client, part(line)), per_client_and_part)];
        let fits = both.iter().all(|(key, limit)| admitted.get(key).copied().unwrap_or(0) < *limit);
        if fits {
            both.iter().for_each(|(key, _)| *admitted.entry(*key).or_default() += 1);
        }
        *denied.entry(line.client).or_default() += u32::from(!fits);
    }
    let total: u32 = denied.values().sum();
    assert!(total > 300, "a log that shows something: {total} denied");
    denied
}
