//! Linux's volumes read here, ours read there: one binary, so that it links once.

mod bad_input;
mod compatibility;
mod crash;
mod damage;
mod devices;
mod features;
mod groups;
mod judge;
mod killed;
mod layouts;
mod logs;
mod mounted;
mod moving;
mod open;
mod parity;
mod quotas;
mod reflinks;
mod rootless;
mod rounds;
mod sharing;
mod space;
mod sqlite;
mod states;
mod streams;
mod suites;
mod upkeep;
