import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Curator's InterProcessMutex, as the benchmark's peer: orders come in lines, "number verb session ..."; each is answered by "number ok" or
 * "number error text". A mutex belongs to a thread, so each has one.
 */
public class CuratorPeer {
    static final PrintStream out = new PrintStream(System.out, false);
    static final Map<String, CuratorFramework> sessions = new ConcurrentHashMap<>();
    static final Map<String, Holder> locks = new ConcurrentHashMap<>();

    static class Holder {
        final ExecutorService thread = Executors.newSingleThreadExecutor(r -> {
            Thread t = new Thread(r);
            t.setDaemon(true);
            return t;
        });
        final InterProcessMutex mutex;

        Holder(CuratorFramework session, String path) {
            mutex = new InterProcessMutex(session, path);
        }
    }

    interface Work {
        void run() throws Exception;
    }

    static void answer(String number, Work work) {
        String text = "ok";
        try {
            work.run();
        } catch (Throwable e) {
            text = "error " + e.toString().replace('\n', ' ');
        }
        synchronized (out) {
            out.println(number + " " + text);
            out.flush();
        }
    }

    static void open(String id, String connect, int ttl) throws Exception {
        CuratorFramework c = CuratorFrameworkFactory.newClient(connect, ttl, ttl, new ExponentialBackoffRetry(100, 3));
        c.start();
        if (!c.blockUntilConnected(20, TimeUnit.SECONDS)) {
            throw new IllegalStateException("not connected");
        }
        sessions.put(id, c);
    }

    static void obey(String[] w) {
        switch (w[1]) {
            case "ready":
                new Holder(CuratorFrameworkFactory.newClient("127.0.0.1:1", new ExponentialBackoffRetry(100, 3)), "/none").thread.shutdown();
                answer(w[0], () -> { });
                break;
            case "open":
                new Thread(() -> answer(w[0], () -> open(w[2], w[3], Integer.parseInt(w[4])))).start();
                break;
            case "close":
                new Thread(() -> answer(w[0], () -> sessions.remove(w[2]).close())).start();
                break;
            case "lock":
                Holder h = locks.computeIfAbsent(w[3], k -> new Holder(sessions.get(w[2]), w[4]));
                h.thread.execute(() -> answer(w[0], () -> h.mutex.acquire()));
                break;
            case "unlock":
                Holder g = locks.get(w[3]);
                g.thread.execute(() -> answer(w[0], () -> g.mutex.release()));
                break;
            default:
                answer(w[0], () -> { throw new IllegalArgumentException(w[1]); });
        }
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            obey(line.split(" "));
        }
        Runtime.getRuntime().halt(0); // as if killed: whoever started us has gone
    }
}
