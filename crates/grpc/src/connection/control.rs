//! Frames that control a connection or a stream: SETTINGS, PING, RST_STREAM, PRIORITY, GOAWAY.

use super::{
    Connection, ErrorCode, Fatal, Head, PAYLOAD_MAX, Serve, U31_MAX, abuse, ending, fatal, flag, frames,
};

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;
const MAX_FRAME_SIZES: std::ops::RangeInclusive<u32> = PAYLOAD_MAX as u32..=0xff_ffff;

impl<S: Serve> Connection<S> {
    pub(super) fn on_settings(&mut self, head: Head, payload: &[u8], out: &mut Vec<u8>) -> Result<(), Fatal> {
        if head.stream != 0 {
            return fatal(ErrorCode::ProtocolError, "SETTINGS are for a stream");
        }
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() || head.has(flag::ACK) && !settings.is_empty() {
            return fatal(ErrorCode::FrameSizeError, "SETTINGS have an invalid length");
        }
        if head.has(flag::ACK) {
            return match std::mem::replace(&mut self.settings_acked, true) {
                false => Ok(()),
                true => fatal(ErrorCode::ProtocolError, "it acknowledges SETTINGS that nobody sent"),
            };
        }
        self.abuse.add(abuse::SETTINGS);
        let mut window = None;
        for &[a, b, ref value @ ..] in settings {
            let value = u32::from_be_bytes(*value);
            match u16::from_be_bytes([a, b]) {
                HEADER_TABLE_SIZE => self.encoder.set_table_max(value),
                ENABLE_PUSH if value > 1 => {
                    return fatal(ErrorCode::ProtocolError, "SETTINGS_ENABLE_PUSH is neither 0 nor 1");
                }
                INITIAL_WINDOW_SIZE if value > U31_MAX => {
                    return fatal(ErrorCode::FlowControlError, "SETTINGS_INITIAL_WINDOW_SIZE is too large");
                }
                INITIAL_WINDOW_SIZE => window = Some(value),
                MAX_FRAME_SIZE if !MAX_FRAME_SIZES.contains(&value) => {
                    return fatal(ErrorCode::ProtocolError, "SETTINGS_MAX_FRAME_SIZE is out of its range");
                }
                _ => {}
            }
        }
        frames::settings_ack(out);
        window.map_or(Ok(()), |window| self.resize_stream_windows(window, out))
    }

    pub(super) fn on_ping(&mut self, head: Head, payload: &[u8], out: &mut Vec<u8>) -> Result<(), Fatal> {
        if head.stream != 0 {
            return fatal(ErrorCode::ProtocolError, "a PING is for a stream");
        }
        if payload.len() != 8 {
            return fatal(ErrorCode::FrameSizeError, "a PING is not 8 bytes long");
        }
        self.abuse.add(abuse::FRAME);
        if ending::is_drain_ack(head.flags, payload) {
            self.refuse_new_streams(out);
        } else if !head.has(flag::ACK) {
            frames::ping(out, flag::ACK, payload);
        }
        Ok(())
    }

    pub(super) fn on_reset(&mut self, head: Head, payload: &[u8]) -> Result<(), Fatal> {
        if self.streams.is_idle(head.stream) {
            return fatal(ErrorCode::ProtocolError, "a RST_STREAM is for a stream that has not begun");
        }
        if payload.len() != 4 {
            return fatal(ErrorCode::FrameSizeError, "a RST_STREAM is not 4 bytes long");
        }
        self.abuse.add(abuse::FRAME);
        if self.remove(head.stream).is_some() {
            self.counts.reset_by_client += 1;
        }
        Ok(())
    }

    pub(super) fn on_priority(&mut self, head: Head, payload: &[u8]) -> Result<(), Fatal> {
        self.abuse.add(abuse::FRAME);
        if head.stream == 0 {
            return fatal(ErrorCode::ProtocolError, "a PRIORITY is for no stream");
        }
        if payload.len() != 5 {
            return fatal(ErrorCode::FrameSizeError, "a PRIORITY is not 5 bytes long");
        }
        if frames::first_u32(payload) & U31_MAX == head.stream {
            return fatal(ErrorCode::ProtocolError, "a stream depends on itself");
        }
        Ok(())
    }

    pub(super) fn on_goaway(&mut self, head: Head, payload: &[u8]) -> Result<(), Fatal> {
        self.abuse.add_unread(payload.len());
        if head.stream != 0 {
            return fatal(ErrorCode::ProtocolError, "a GOAWAY is for a stream");
        }
        if payload.len() < 8 {
            return fatal(ErrorCode::FrameSizeError, "a GOAWAY is shorter than 8 bytes");
        }
        Ok(())
    }
}
