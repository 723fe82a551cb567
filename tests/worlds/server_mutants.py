"""Faults to be planted in the server, and found by worlds of servers."""

from tests.worlds.planting import Mutant

SERVER_MUTANTS = [
    # --- admission and queue
    Mutant(
        "no signal refuses anybody",
        "core/overload/overload_signals.py",
        "        refusal = self.admission.refuses(criticality, attempt)\n",
        "        refusal = None\n",
    ),
    Mutant(
        "criticality is not looked at",
        "core/criticality.py",
        "        taken += demand[c]\n        if taken > room[c]:",
        "        taken += demand[c]\n"
        "        result[c] = min(1.0, room[0] / sum(demand))\n        if False:",
    ),
    Mutant(
        "a signal refuses all",
        "core/overload/admission.py",
        "        if share >= 1.0 or self._random() < share:",
        "        if share >= 1.0:",
    ),
    Mutant(
        "what is refused is executed",
        "server/overload/gate.py",
        "            self.count(refusal.value, criticality)\n"
        "            return RefusalStatus(\n",
        "            self.count(refusal.value, criticality)\n"
        "            return None and RefusalStatus(\n",
    ),
    Mutant(
        "who has lost its turn is not told",
        "server/overload/run_queue.py",
        "                    turn.set_result(False)\n",
        "                    pass\n",
    ),
    Mutant(
        "the queue is closed for good",
        "server/overload/run_queue.py",
        "            self.is_closed = False\n            self._costs.pause()",
        "            self._costs.pause()",
    ),
    Mutant(
        "too late is only what has expired",
        "server/requests/handler.py",
        "        has_waited = waited > WAITS * left",
        "        has_waited = False",
    ),
    Mutant(
        "a refusal does not end its request",
        "server/requests/async_context.py",
        "        await self.inner.abort(answer.code, answer.details,"
        " self._refusing(answer))\n        raise",
        "        try:\n            await self.inner.abort(\n"
        "                answer.code, answer.details, self._refusing(answer)\n"
        "            )\n        except Exception:\n            return\n        raise",
    ),
    Mutant(
        "every request is as critical",
        "server/overload/metadata.py",
        "                criticality = min(claimed, self._highest)\n",
        "                criticality = DEFAULT\n",
    ),
    # --- quotas and costs
    Mutant(
        "what a quota store raises is not caught",
        "server/quotas/quota_enforcer.py",
        "            self._complain(error)\n            return INTERVAL",
        "            raise",
    ),
    Mutant(
        "no quota is used up",
        "core/quotas/quota.py",
        "        return Refusal.QUOTA if account.refuses(criticality, now) else None",
        "        return None",
    ),
    Mutant(
        "quotas are shared by nobody",
        "server/quotas/quota_enforcer.py",
        "            self.quota.take(shares, self._clock())\n            heard",
        "            heard",
    ),
    Mutant(
        "a store that lies is believed",
        "server/quotas/quota_enforcer.py",
        "        fleet, heard = _sound(fleet, self._limits), self._heard",
        "        heard = self._heard",
    ),
    Mutant(
        "a store that hangs is waited for",
        "server/quotas/quota_enforcer.py",
        "asyncio.timeout(INTERVAL)",
        "asyncio.timeout(None)",
    ),
    Mutant(
        "all pay from one account",
        "core/quotas/quota.py",
        "        if is_name(customer):\n            return customer, self",
        "        if False:\n            return customer, self",
    ),
    Mutant(
        "steps within steps are paid twice",
        "server/quotas/cpu_timing.py",
        "        payer.pay(spent - nesting.inner)",
        "        payer.pay(2.0 * spent)",
    ),
    # --- drain, reports and UDP
    Mutant(
        "GOAWAY is sent at once",
        "server/lame_duck.py",
        "            await asyncio.sleep(POLL_INTERVAL)\n"
        "        await self._wait_for_few_unseen()\n",
        "            break\n",
    ),
    Mutant(
        "a drain waits for ever",
        "server/lame_duck.py",
        "if now >= self._goaway_at or self._is_stopped:\n            return True",
        "if self._is_stopped:\n            return True\n        return False",
    ),
    Mutant(
        "watchers are told at their pace",
        "server/report/reporter.py",
        "        self._encode()\n        self._streams.push()\n",
        "        self._encode()\n",
    ),
    Mutant(
        "UDP secrets do not matter",
        "wire/datagram.py",
        "    return compare_digest(data, _seal(data[:-SEAL_SIZE], secret))",
        "    return True",
    ),
    Mutant(
        "UDP tells nobody of a lame duck",
        "server/grpc_server.py",
        "            self._intake.ask_for_few()\n            self._udp.push()",
        "            self._intake.ask_for_few()",
    ),
    Mutant(
        "the sampler is not stopped",
        "server/parts.py",
        "        self.sampler.stop()\n        self.gate.stop()",
        "        self.gate.stop()",
    ),
    Mutant(
        "reports tell half of the load",
        "server/report/reporter.py",
        "self.monitor.sample(now, cpu, self._own.utilization(cpu), cpus)",
        "self.monitor.sample(now, cpu / 4, self._own.utilization(cpu / 4), cpus)",
    ),
    Mutant(
        "a refusal is not counted",
        "server/overload/charging.py",
        "self._refusals.count(Refusal.QUOTA.value, criticality, is_for_load=False)",
        "pass",
    ),
]
