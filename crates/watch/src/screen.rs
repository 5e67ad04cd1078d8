//! The whole screen of `buttress top`: a [`View`] takes answers and keys, and is drawn into cells.

mod draw;
mod picture;
mod server;
mod style;
mod view;

pub use draw::all as draw;
pub use picture::{svg, text};
pub use server::Server;
pub use view::{Next, View};
