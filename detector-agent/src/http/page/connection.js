// The connection to the agent: requests with the token, and the event stream, which is opened again when it ends.

import { $, clockText } from "./dom.js";

const HEARTBEAT_TIMEOUT = 25000; // the agent sends a heartbeat every 10 s
const MAX_RETRY_DELAY = 10000;

let token = sessionStorage.getItem("token");
let lostAt = null;
let retryDelay = 1000;
let wake = null; // ends the current wait

class Unauthorized extends Error {}

export function isLost() {
  return lostAt !== null;
}

// Does not wait any longer before connecting again.
export function retryNow() {
  if (isLost()) wake?.();
}

export function request(path, options = {}) {
  const headers = { ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  return fetch(path, { ...options, headers, cache: "no-store" });
}

// The JSON of a response; fails if the agent refused the request.
export async function load(path) {
  return (await accepted(await request(path))).json();
}

function accepted(response) {
  if (response.status === 401) throw new Unauthorized();
  if (!response.ok) throw new Error(`the agent answered ${response.status}`);
  return response;
}

// Follows the events for ever. `loadAll` loads the current state, `connected` is called after it, and `apply` for each event.
export async function follow({ loadAll, connected, apply }) {
  for (;;) {
    try {
      await followOnce(loadAll, connected, apply);
    } catch (error) {
      if (error instanceof Unauthorized) {
        await promptForToken();
        continue;
      }
      showDisconnected(error instanceof TypeError ? "the agent cannot be reached" : error.message);
    }
    await new Promise((resolve) => {
      wake = resolve;
      setTimeout(resolve, retryDelay);
    });
    wake = null;
    retryDelay = Math.min(retryDelay * 2, MAX_RETRY_DELAY);
  }
}

// Reads the event stream until it ends. Uses fetch because EventSource cannot send the token.
async function followOnce(loadAll, connected, apply) {
  const stop = new AbortController();
  let watchdog = setTimeout(() => stop.abort(), HEARTBEAT_TIMEOUT);
  try {
    const response = await request("api/v1/events", { signal: stop.signal, headers: { Accept: "text/event-stream" } });
    if (response.status === 503) throw new Error("the agent has too many open event streams");
    const reader = accepted(response).body.pipeThrough(new TextDecoderStream()).getReader();
    // Events that arrive during the load are applied after it, so none is lost or overwritten.
    await loadAll();
    showConnected();
    connected();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("the agent closed the connection");
      clearTimeout(watchdog);
      watchdog = setTimeout(() => stop.abort(), HEARTBEAT_TIMEOUT);
      text += value;
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        const block = text.slice(0, end);
        text = text.slice(end + 2);
        const { kind, data } = parse(block);
        if (kind === "message") apply(JSON.parse(data));
        else if (kind === "reset") await loadAll();
      }
    }
  } catch (error) {
    if (stop.signal.aborted) throw new Error("the agent stopped responding");
    throw error;
  } finally {
    clearTimeout(watchdog);
    stop.abort();
  }
}

function parse(block) {
  let kind = "message";
  let data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) kind = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  return { kind, data };
}

// ---- what the page shows of it ----

function showLink(state, text) {
  $("link").className = `link ${state}`;
  $("link-text").textContent = text;
}

function showDisconnected(reason) {
  lostAt ??= new Date();
  showLink("lost", "Disconnected");
  $("banner").hidden = false;
  $("banner").textContent = `Disconnected since ${clockText(lostAt)} (${reason}). Data may be out of date; reconnecting.`;
  $("main").classList.add("stale");
}

function showConnected() {
  lostAt = null;
  retryDelay = 1000;
  showLink("live", "Live");
  $("banner").hidden = true;
  $("main").classList.remove("stale");
  $("main").hidden = false;
  $("nav").hidden = false;
  $("token-prompt").hidden = true;
}

function promptForToken() {
  $("main").hidden = true;
  $("nav").hidden = true;
  $("problems").hidden = true;
  $("banner").hidden = true;
  $("token-prompt").hidden = false;
  $("token-error").hidden = !token;
  showLink("connecting", "Token required");
  $("token").focus();
  return new Promise((resolve) => { wake = resolve; });
}

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value.trim();
  sessionStorage.setItem("token", token);
  $("token").value = "";
  wake?.();
});
