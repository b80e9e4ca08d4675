//! Rules from files. Stub.
