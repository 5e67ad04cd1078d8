//! `buttress metrics`: gives Prometheus the figures of this user's mounts and servers.

use buttress_watch::openmetrics;
use tiny_http::{Header, Request, Response, Server};

use crate::exit::{Exit, Failure, Result};
use crate::live;
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address to listen on. There is no encryption and no password, so use an address of this
    /// machine.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9547")]
    listen: String,
}

pub(crate) fn run(ui: &Ui, args: &Args) -> Result<Exit> {
    let refused = |error| Failure::new(Exit::Failure, format!("{}: {error}", args.listen));
    let server = Server::http(&args.listen).map_err(refused)?;
    ui.note(format!("listening on http://{}/metrics", server.server_addr()));
    for request in server.incoming_requests() {
        answer(request);
    }
    Ok(Exit::Success)
}

/// Answers one request. If the client has gone away, only the answer to this request is lost.
fn answer(request: Request) {
    let path = request.url().split('?').next().unwrap_or_default();
    let sent = if !matches!(path, "/metrics" | "/") {
        request.respond(Response::from_string("see /metrics\n").with_status_code(404))
    } else {
        match live::all() {
            Ok(all) => {
                let answers: Vec<_> = all.into_iter().map(|(_, answer)| answer).collect();
                let mut response = Response::from_string(openmetrics::text(&answers));
                if let Ok(header) = Header::from_bytes("Content-Type", openmetrics::MEDIA_TYPE) {
                    response = response.with_header(header);
                }
                request.respond(response)
            }
            Err(failure) => {
                let response = Response::from_string(format!("{failure}\n"));
                request.respond(response.with_status_code(500))
            }
        }
    };
    drop(sent);
}
