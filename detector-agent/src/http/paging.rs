//! Streams a list page by page, so that no complete answer is ever held in memory.

use std::sync::Arc;

use detector_event::Moment;
use serde::Serialize;
use tokio::sync::mpsc;

use super::{
    App, Sources,
    engine_client::QueryError,
    list::List,
    parameters::{Parameters, Position, Supported},
    respond::{JSON, Reply, head_only, stream},
};
use crate::process::clock;

/// An item of a streamed list, queried by key in batches.
pub(super) trait Listed: Sized + Send + Sync {
    type Key: Ord + Clone + std::fmt::Display + std::str::FromStr + Send + Sync + 'static;
    type Data: Serialize + Send + Sync;
    /// The list's name in the response.
    const LIST: &'static str;
    /// Name of the list that follows on the last page.
    const LAST: Option<&'static str> = None;
    const PER_QUERY: usize;

    /// The items of these keys, in the order of their keys.
    fn query(
        app: &App,
        keys: &[Self::Key],
    ) -> impl Future<Output = Result<Vec<Self>, QueryError>> + Send;

    fn key(&self) -> Self::Key;

    /// The item as it is serialised.
    fn data(&self, sources: &Sources, moment: &Moment) -> Self::Data;

    /// Leaves out what a list does not have.
    fn shorten(_: &mut Self::Data) {}

    /// Whether an item of this key may be selected.
    fn may_select(_: &Parameters, _: &Self::Key) -> bool {
        true
    }

    fn selects(parameters: &Parameters, data: &Self::Data) -> bool;
}

/// A request for a list.
pub(super) struct Page<L: Listed> {
    pub(super) parameters: Parameters,
    from: Option<Position<L::Key>>,
}

impl<L: Listed> Page<L> {
    pub(super) fn parse(query: Option<&str>, supported: Supported) -> Result<Self, Box<Reply>> {
        let parameters = Parameters::parse(query, supported)?;
        let from = parameters.position()?;
        Ok(Self { parameters, from })
    }
}

/// Streams a page: the items of `keys`, which are sorted, and after the last page what `last` returns.
pub(super) fn answer<L: Listed + 'static>(
    app: Arc<App>,
    page: Page<L>,
    mut keys: Vec<L::Key>,
    head: bool,
    last: impl FnOnce(&App, &Page<L>) -> Vec<L::Data> + Send + 'static,
) -> Reply {
    if head {
        return head_only(JSON);
    }
    if let Some(from) = &page.from {
        keys.retain(|key| *key >= from.key);
    }
    keys.retain(|key| L::may_select(&page.parameters, key));
    let (to, from) = mpsc::channel(2);
    tokio::spawn(async move {
        let mut list = List::begin(&app.sources, L::LIST, page.parameters.reasons_once, to);
        let Ok(next) = write(&app, &page, &keys, &mut list).await else {
            list.abort().await;
            return;
        };
        if let Some(name) = L::LAST {
            let items = if next.is_none() {
                last(&app, &page)
            } else {
                Vec::new()
            };
            list.add_list(name, &items);
        }
        list.end(next.map(|position| position.to_string())).await;
    });
    stream(JSON, from)
}

/// Writes the items of `keys`; returns where the next page begins, if this one is not the last.
async fn write<L: Listed>(
    app: &App,
    page: &Page<L>,
    keys: &[L::Key],
    list: &mut List,
) -> Result<Option<Position<L::Key>>, Interrupted> {
    let mut room = page.parameters.limit.unwrap_or(usize::MAX);
    for chunk in keys.chunks(L::PER_QUERY) {
        let moment = clock::moment();
        let found = L::query(app, chunk).await.map_err(|_| Interrupted)?;
        // How many items of the current key came before.
        let mut before = 0;
        let mut previous = None;
        for item in &found {
            let key = item.key();
            before = if previous.as_ref() == Some(&key) {
                before + 1
            } else {
                0
            };
            previous = Some(key.clone());
            let is_on_earlier_page =
                (page.from.as_ref()).is_some_and(|from| from.key == key && before < from.skip);
            if is_on_earlier_page {
                continue;
            }
            let mut data = item.data(&app.sources, &moment);
            if !L::selects(&page.parameters, &data) {
                continue;
            }
            if room == 0 {
                return Ok(Some(Position { key, skip: before }));
            }
            room -= 1;
            L::shorten(&mut data);
            list.add(&data);
        }
        if !list.send().await {
            return Err(Interrupted);
        }
    }
    Ok(None)
}

/// The list cannot be completed: the event loop gave no answer, or the client disconnected.
struct Interrupted;
