// Elements are made here and nowhere else. Data becomes text nodes and attributes, never markup:
// rows hold what strangers have written.

const SVG = "http://www.w3.org/2000/svg";
const HANDLERS = ["onclick", "onsubmit", "onchange", "oninput", "onkeydown", "onpointermove", "onpointerleave"];

function build(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (HANDLERS.includes(name)) element[name] = value;
    else if (name === "style") for (const [k, v] of Object.entries(value)) element.style.setProperty(k, v);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...flat(children));
  return element;
}

function flat(children) {
  return children.flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}

/** An element: `h("a", {href: "#/"}, "text", other)`. */
export function h(tag, props, ...children) {
  return build(document.createElement(tag), props, children);
}

/** An element of a drawing. */
export function s(tag, props, ...children) {
  return build(document.createElementNS(SVG, tag), props, children);
}

/** Only links to this page and to the web are links; anything else is text. */
export function link(href, ...children) {
  return h("a", { href }, ...children);
}

/**
 * Makes `old` look like `fresh` and keeps the elements that are there, so that focus, selection,
 * scrolling and what a person has opened survive a refresh.
 */
export function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || key(old) !== key(fresh)) {
    old.replaceWith(fresh);
    return fresh;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return old;
  }
  // What keeps its own state looks after itself.
  if (old.dataset?.own !== undefined) return old;
  attributes(old, fresh);
  for (const name of HANDLERS) if (old[name] !== fresh[name]) old[name] = fresh[name] ?? null;
  children(old, [...fresh.childNodes]);
  return old;
}

const key = (node) => node.dataset?.key;

function attributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    // A person opens and closes, not the data.
    if (name === "open") continue;
    if (fresh.hasAttribute(name)) continue;
    old.removeAttribute(name);
    if (name === "selected") old.selected = false;
    if (name === "value") old.value = "";
  }
  for (const { name, value } of fresh.attributes) {
    if (name === "open") continue;
    if (name === "style") {
      if (old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText;
    } else if (old.getAttribute(name) !== value) {
      old.setAttribute(name, value);
      // What a person has chosen or typed no longer follows its attribute.
      if (name === "selected") old.selected = true;
      if (name === "value") old.value = value;
    }
  }
}

function children(old, fresh) {
  const keyed = new Map([...old.childNodes].filter((n) => key(n) !== undefined).map((n) => [key(n), n]));
  let place = old.firstChild;
  for (const node of fresh) {
    const known = key(node) === undefined ? null : keyed.get(key(node));
    if (known) {
      if (known === place) place = place.nextSibling;
      else old.insertBefore(known, place);
      morph(known, node);
    } else if (place && key(place) === undefined && key(node) === undefined) {
      const next = place.nextSibling;
      morph(place, node);
      place = next;
    } else {
      old.insertBefore(node, place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}
