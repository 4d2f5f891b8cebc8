"""A server that decodes one token for each of its requests in turn. Each request has a cache that grows by
concatenation: the simplest serving loop, and a hard one for an allocator."""

from lengths import requests


class Server:
    def __init__(self, torch, device, model, vocabulary, at_once, most_prompt, most_output):
        self.torch, self.device, self.model = torch, device, model
        self.vocabulary, self.at_once = vocabulary, at_once
        self.waiting = requests(most_prompt, most_output)
        self.running = []
        self.tokens = 0

    def admit(self):
        prompt, output = next(self.waiting)
        tokens = self.torch.randint(0, self.vocabulary, (1, prompt), device=self.device)
        return {"next": tokens, "at": 0, "left": output, "caches": [[] for _ in self.model.blocks]}

    def decode(self, request):
        tokens = request["next"]
        logits = self.model(tokens, caches=request["caches"], begin=request["at"])
        request["at"] += tokens.shape[1]
        request["next"] = logits[:, -1].argmax(-1, keepdim=True)
        request["left"] -= 1
        self.tokens += 1

    def round(self):
        """A token for each; requests that are answered make room for others."""
        while len(self.running) < self.at_once:
            self.running.append(self.admit())
        with self.torch.no_grad():
            for request in self.running:
                self.decode(request)
        self.running = [request for request in self.running if request["left"] > 0]
