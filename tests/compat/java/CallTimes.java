import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;

/** Calls of some threads for a while, each thread one after the other: how many a second, and how long they take. A broker without
 *  processor time refuses some; many refusals end the program. */
final class CallTimes {
    static final int FAILURES_MAX = 64;

    interface Call {
        /** False: there is nothing more to call for, and it has not called. */
        boolean run() throws Exception;
    }

    /** Prints BEGIN when the calls begin to count, and CALLS with name, threads, calls, seconds, p50 and p99 in ms, and failed calls. */
    static void measure(String name, int threads, double warmUp, double seconds, Call call) throws Exception {
        AtomicLong begin = new AtomicLong(Long.MAX_VALUE), end = new AtomicLong(Long.MAX_VALUE);
        Failures failures = new Failures();
        List<Caller> callers = new ArrayList<>();
        for (int i = 0; i < threads; i++) callers.add(new Caller(call, begin, end, failures));
        callers.forEach(Thread::start);
        Thread.sleep((long) (warmUp * 1000));
        System.out.println("BEGIN\t" + name + "\t" + threads);
        System.out.flush();
        long begun = System.nanoTime();
        begin.set(begun);
        long left;
        while ((left = begun + (long) (seconds * 1e9) - System.nanoTime()) > 0 && callers.stream().anyMatch(Thread::isAlive))
            Thread.sleep(Math.max(1, Math.min(20, left / 1_000_000)));
        end.set(System.nanoTime());
        for (Caller caller : callers) caller.join();
        long[] times = callers.stream().flatMapToLong(caller -> Arrays.stream(caller.times, 0, caller.count)).sorted().toArray();
        if (times.length == 0 || failures.tooMany())
            throw new IllegalStateException(name + ": " + times.length + " calls ended in time, and " + failures.count + " failed");
        System.out.println("CALLS\t" + name + "\t" + threads + "\t" + times.length + "\t" + (end.get() - begun) / 1e9
            + "\t" + times[times.length / 2] / 1e6 + "\t" + times[(int) (times.length * 0.99)] / 1e6 + "\t" + failures.count);
        System.out.flush();
    }

    private static final class Failures {
        int count;

        synchronized void add(Exception error) {
            if (count++ == 0) error.printStackTrace();
        }

        synchronized boolean tooMany() {
            return count > FAILURES_MAX;
        }
    }

    private static final class Caller extends Thread {
        final Call call;
        final AtomicLong begin, end;
        final Failures failures;
        long[] times = new long[1024];
        int count;

        Caller(Call call, AtomicLong begin, AtomicLong end, Failures failures) {
            this.call = call;
            this.begin = begin;
            this.end = end;
            this.failures = failures;
        }

        @Override public void run() {
            long called;
            while ((called = System.nanoTime()) < end.get()) {
                try {
                    if (!call.run()) return;
                } catch (Exception error) {
                    failures.add(error);
                    if (failures.tooMany()) return;
                    continue;
                }
                long now = System.nanoTime();
                if (called < begin.get() || now > end.get()) continue;
                if (count == times.length) times = Arrays.copyOf(times, count * 2);
                times[count++] = now - called;
            }
        }
    }
}
