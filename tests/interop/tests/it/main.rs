//! Linux's volumes are used here, and our volumes are used by Linux. All tests are in one binary,
//! so that only one program is linked.

mod backup_roots;
mod bad_input;
mod compatibility;
mod crash;
mod damage;
mod devices;
mod features;
mod filled;
mod groups;
mod inside;
mod killed;
mod layouts;
mod logs;
mod mounted;
mod moving;
mod open;
mod parity;
mod quota_words;
mod quotas;
mod reflinks;
mod replacing;
mod rootless;
mod rounds;
mod sectors;
mod seeds;
mod sharing;
mod sizes;
mod space;
mod sqlite;
mod states;
mod streams;
mod suites;
mod undamaged;
mod upkeep;
mod verdict;
