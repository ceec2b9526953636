"""A mail server in this process."""

from __future__ import annotations

import email
import email.policy
import socketserver
from contextlib import AbstractContextManager
from email.message import EmailMessage

from support.threads import serving


class MailServer:
    def __init__(self) -> None:
        self.messages: list[str] = []
        messages = self.messages

        class Session(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.say("220 mail.example.com")
                while line := self.rfile.readline():
                    command = line.strip().upper()
                    if command == b"DATA":
                        self.say("354 go on")
                        messages.append(b"".join(iter(self.rfile.readline, b".\r\n")).decode())
                    self.say("221 bye" if command == b"QUIT" else "250 ok")

            def say(self, text: str) -> None:
                self.wfile.write(f"{text}\r\n".encode())

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]

    def parsed(self) -> list[EmailMessage]:
        found = []
        for text in self.messages:
            message = email.message_from_string(text, policy=email.policy.default)
            (part,) = [part for part in message.walk() if not part.is_multipart()]
            part["Subject"], part["To"] = message["Subject"], message["To"]
            found.append(part)
        return found

    def served(self) -> AbstractContextManager[None]:
        return serving(self._server)
