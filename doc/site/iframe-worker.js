// SPDX-License-Identifier: Apache-2.0
// Browsers start no worker for a page that comes from a file, and the search of mkdocs-material needs one. There,
// a hidden frame runs the worker's script. The offline plugin omits its own, from elsewhere, for this file's name.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.head.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = this.inside.document.createElement("script");
      script.src = address;
      this.loaded = new Promise((resolve) => (script.onload = resolve));
      this.inside.document.head.append(script);
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
