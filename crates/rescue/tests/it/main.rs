//! Volumes are damaged in many ways, and every file that can be restored is restored.

mod campaign;
mod content;
mod deleted;
mod facts;
mod logged;
mod lost_nodes;
mod mended;
mod old_logs;
mod striped;
mod versions;
mod volume;
