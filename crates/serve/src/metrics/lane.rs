//! Counters of the lane, our own HTTP/2 server: connections, streams, resets, and how connections ended.

use super::striped::{Slot, Striped, Writer};
use super::text::{MetricType, Page, Samples};

/// The names of HTTP/2's error codes, by number (RFC 9113, section 7).
const CODES: [&str; 14] = [
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
];

/// The first slot of the counters; each constant below is an offset.
pub(super) struct Lane(Slot);

const OPENED: usize = 0;
const CLOSED: usize = 1;
const STREAMS: usize = 2;
const RESET_BY_CLIENT: usize = 3;
const RESET_BY_SERVER: usize = 4;
const MISBEHAVED: usize = 5;
const GOAWAYS: usize = 6;

impl Lane {
    pub(super) const SLOTS: u32 = (GOAWAYS + CODES.len()) as u32;

    /// All counters at 0; `None` if there is no room for their slots.
    pub(super) fn new(striped: &Striped) -> Option<Self> {
        striped.reserve(Self::SLOTS).map(Self)
    }

    pub(super) fn opened(&self, writer: &Writer<'_>) {
        writer.add(self.0.plus(OPENED), 1);
    }

    pub(super) fn closed(&self, writer: &Writer<'_>) {
        writer.add(self.0.plus(CLOSED), 1);
    }

    pub(super) fn streams(
        &self,
        writer: &Writer<'_>,
        began: u32,
        reset_by_client: u32,
        reset_by_server: u32,
    ) {
        let counts =
            [(STREAMS, began), (RESET_BY_CLIENT, reset_by_client), (RESET_BY_SERVER, reset_by_server)];
        for (place, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            writer.add(self.0.plus(place), count.into());
        }
    }

    pub(super) fn ended(&self, writer: &Writer<'_>, code: u8, misbehaved: bool) {
        if usize::from(code) < CODES.len() {
            writer.add(self.0.plus(GOAWAYS + usize::from(code)), 1);
        }
        writer.add(self.0.plus(MISBEHAVED), misbehaved.into());
    }

    pub(super) fn write(&self, page: &mut Page, striped: &Striped) {
        let sum = |place| striped.sum(self.0.plus(place));
        let mut single = |family: &str, help: &str, kind, value: u64| {
            Samples::of(page, family, help, kind).push(&[], value);
        };
        let (opened, closed) = (sum(OPENED), sum(CLOSED));
        single("tidegate_lane_connections_total", "Connections of the lane.", MetricType::Counter, opened);
        let open = opened.saturating_sub(closed);
        single(
            "tidegate_lane_connections",
            "Connections of the lane that are open.",
            MetricType::Gauge,
            open,
        );
        single("tidegate_lane_streams_total", "Streams of the lane.", MetricType::Counter, sum(STREAMS));
        let help = "Connections of the lane that were closed because their client misbehaved.";
        single("tidegate_lane_misbehaved_total", help, MetricType::Counter, sum(MISBEHAVED));
        let help = "Streams of the lane that were reset, by side.";
        let mut samples = Samples::of(page, "tidegate_lane_resets_total", help, MetricType::Counter);
        samples.push(&[("by", "client")], sum(RESET_BY_CLIENT));
        samples.push(&[("by", "server")], sum(RESET_BY_SERVER));
        let help = "Connections of the lane that we ended, by the code of their GOAWAY.";
        let mut samples = Samples::of(page, "tidegate_lane_goaways_total", help, MetricType::Counter);
        for (code, name) in CODES.iter().enumerate() {
            match sum(GOAWAYS + code) {
                0 if *name != CODES[0] => {}
                count => samples.push(&[("code", name)], count),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_counts_are_written() {
        let striped = Striped::new(1, Lane::SLOTS);
        let lane = Lane::new(&striped).expect("room");
        let writer = striped.writer();
        (0..3).for_each(|_| lane.opened(&writer));
        lane.closed(&writer);
        lane.streams(&writer, 7, 2, 1);
        lane.ended(&writer, 11, true);
        lane.ended(&writer, 0, false);
        let mut page = Page::default();
        lane.write(&mut page, &striped);
        let out = page.text;
        for line in [
            "tidegate_lane_connections_total 3",
            "tidegate_lane_connections 2",
            "tidegate_lane_streams_total 7",
            "tidegate_lane_misbehaved_total 1",
            "tidegate_lane_resets_total{by=\"client\"} 2",
            "tidegate_lane_resets_total{by=\"server\"} 1",
            "tidegate_lane_goaways_total{code=\"NO_ERROR\"} 1",
            "tidegate_lane_goaways_total{code=\"ENHANCE_YOUR_CALM\"} 1",
        ] {
            assert!(out.lines().any(|written| written == line), "{line}\n{out}");
        }
        assert!(!out.contains("PROTOCOL_ERROR"));
    }
}
