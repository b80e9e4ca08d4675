//! Attacks on the gRPC port, and on the HTTP port where it differs: for each, memory stays within the bound that the
//! test names, a client that calls at the same time gets every answer, and the attacker is closed or gets no further.

mod crowds;
mod floods;
mod headers;
mod random;
mod stalls;
